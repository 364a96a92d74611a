import { Client } from "./branches.ts";

async function main() {
  const client = await new Client(process.argv[2]).open();
  const messages = [{ role: "user", content: "Who are you?" }];
  const trunk = await client.branch("trunk", { messages });
  const kids = await trunk.fork(["left", "right"]);
  const answers = await Promise.all(kids.map((kid) => kid.verb("generate", { max_tokens: 32 })));
  for (const answer of answers) console.log(answer.id, answer.generation?.text);
  client.close();
}

main();
