"""From files of questions, chats and pairs to examples: the stages benchmarks, conversations and preferences, and what they share."""
