"""What talks to servers outside: one module per library, which builds its clients and translates its errors."""
