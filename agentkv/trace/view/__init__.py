"""A trace as a page: `columns` reads it, `page` writes it, `assets` are what the browser runs."""
