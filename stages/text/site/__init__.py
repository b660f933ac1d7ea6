"""The crawler and the documentation site that tiny crawls. The only room of text with network and servers."""
