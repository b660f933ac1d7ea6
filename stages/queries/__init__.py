"""Questions, read-only: plan, trace, compare, chat, doctor."""
