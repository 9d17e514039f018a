"""How pytest calls the judge: collection, fixtures, benchmarks."""
