"""HTTP below every protocol of the server: bodies, errors, responses, middleware, the listener."""
