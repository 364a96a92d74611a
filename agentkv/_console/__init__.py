"""Where commands print, and the progress that they show."""
