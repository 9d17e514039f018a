"""What every room stands on: errors, files, TOML tables, processes."""
