"""The dialect: text to statements, types, functions. Knows nothing of storage or execution."""
