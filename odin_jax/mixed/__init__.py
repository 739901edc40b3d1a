"""Mixed parallelism: rows divided over ranks, pixels divided over ranks, attributes exchanged between (spec §6)."""
