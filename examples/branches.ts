// Branches of `agentkv serve` in TypeScript: a request is sent until its answer is heard, and done once.
type Json = Record<string, unknown>;
type State = { id: string; length: number; generation?: { text: string }; forks?: State[] };

export class ServerError extends Error {
  status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export class Client {
  url: string;
  headers: Record<string, string>;
  lease: string = crypto.randomUUID(); // its branches are closed once this program is gone
  held: AbortController = new AbortController();

  constructor(url: string, key: string = "none") {
    this.url = url;
    this.headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  }

  async open(): Promise<Client> {
    const { headers, held } = this;
    const lease = await fetch(`${this.url}/v1/leases/${this.lease}`, { headers, signal: held.signal });
    lease.text().catch(() => {}); // it has no end: reading it holds the lease
    return this;
  }

  close(): void {
    this.held.abort();
  }

  async send(method: string, path: string, body: Json): Promise<State> {
    const headers = { ...this.headers, "idempotency-key": crypto.randomUUID() }; // one for all attempts
    for (let attempt = 0; ; attempt++) {
      try {
        const response = await fetch(this.url + path, { method, headers, body: JSON.stringify(body) });
        const answer = await response.json();
        if (response.ok) return answer;
        throw new ServerError(response.status, answer.error.message);
      } catch (error) {
        const passes = !(error instanceof ServerError) || error.status === 429 || error.status === 503;
        if (!passes || attempt === 7) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, 100 * 2 ** attempt));
    }
  }

  async branch(name: string, prompt: Json): Promise<Branch> {
    return new Branch(this, await this.send("POST", "/v1/branches", { ...prompt, name, lease: this.lease }));
  }
}

export class Branch {
  client: Client;
  state: State;
  constructor(client: Client, state: State) {
    this.client = client;
    this.state = state;
  }

  // `extend`, `generate`, `rollback` ...: from where this program knows the branch to be, or not at all (409).
  async verb(name: string, body: Json): Promise<State> {
    const given = { ...body, if_length: this.state.length };
    this.state = await this.client.send("POST", `/v1/branches/${this.state.id}/${name}`, given);
    return this.state;
  }

  async fork(names: string[]): Promise<Branch[]> {
    const { forks } = await this.verb("fork", { names });
    return (forks ?? []).map((state) => new Branch(this.client, state));
  }
}
