"""What the tools are about, in a word."""

from __future__ import annotations

TOPICS = {
    "calculator": ("arithmetic", "math", "numbers"),
    "convert": ("units", "conversion"),
    "weather": ("weather", "forecast"),
    "calendar": ("calendar", "schedule"),
    "stock": ("stock", "shop", "sales"),
    "search_notes": ("notes",),
    "contact": ("people", "contacts"),
    "exchange": ("money", "finance"),
    "train": ("trains", "rail"),
    "flight": ("flights", "air"),
    "add_todo": ("tasks", "todo"),
    "set_timer": ("timers", "timer"),
    "translate": ("languages", "translation"),
    "define": ("dictionary", "words"),
    "track": ("parcels", "delivery", "shipping"),
    "clock": ("time", "clocks"),
    "send": ("messages", "mail"),
}
