"""Files as rows: CSV, JSON lines and Parquet, each as it was meant, or refused."""
