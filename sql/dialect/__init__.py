"""sqlglot dialect `tdengine`: tokenizer, parser and generator. Doesn't look up names."""
