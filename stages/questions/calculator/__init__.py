"""Calculates what a crawl or a training costs before anything of it exists: from measured coefficients, data sheets and published formulas."""
