"""HTTP layer below all protocols of the server: bodies, errors, responses, middleware, listener."""
