"""Classes of statements and expressions: the parser's output, the generator's input, executed by the engine."""
