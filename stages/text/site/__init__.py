"""The crawler, and the documentation site that the recipe tiny crawls. Only this part of text uses network and servers."""
