"""What is declared once: tables without logic, from which `make generate` writes the copies."""
