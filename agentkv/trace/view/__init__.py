"""A trace as a page: `columns` reads it, `page` writes it, `assets` are the browser's scripts and styles."""
