"""Model folders: their files, what is believed of them, and how they are written whole."""
