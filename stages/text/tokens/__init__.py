"""Token spans, packed into sequences."""
