"""What changes the schema, beside the migrations: locks that they wait for, rights, functions."""
