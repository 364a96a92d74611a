"""Other frameworks' models, over branches in this process. Each module needs its framework; none is imported here."""
