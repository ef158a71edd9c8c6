"""Other libraries' descriptions of tables and plans, in and out."""
