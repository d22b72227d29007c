"""What talks to external servers: one module per library, which builds its clients and translates its errors."""
