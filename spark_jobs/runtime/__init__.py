"""What Spark runs on: Java, its log and its errors, the JDBC driver, folders, connections of tasks."""
