"""sqlglot's dialect `tdengine`: tokenizer, grammar and printer. Looks nothing up."""
