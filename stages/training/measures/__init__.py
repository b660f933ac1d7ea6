"""What is measured and recorded while a model trains: metrics, speed, memory, ratios of updates, texts that it writes."""
