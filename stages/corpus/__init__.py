"""From a crawl to documents: the stages crawl to decontaminate, train_quality and text_index, and what they share."""
