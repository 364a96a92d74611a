"""What tasks wait for, on asyncio and trio; knows nothing of models."""
