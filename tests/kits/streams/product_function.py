"""A user's aggregate function, as the text of a module that imports `math`."""

PRODUCT = '''
class Product:
    def init(self):
        return 1.0

    def accumulate(self, state, values):
        return state * math.prod(values.drop_null().to_pylist())

    def merge(self, left, right):
        return left * right

    def finish(self, state):
        return state
'''
