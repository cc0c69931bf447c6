# A borrowed reference: the driver owns the object and drops its own reference.
# The actor still borrows it, so the object lives until the actor lets go.
import minray


@minray.remote
class Borrower:
    def keep(self, references):
        self.references = references

    def read(self):
        return minray.get(self.references[0])

    def drop(self):
        self.references = []


borrower = Borrower.remote()
reference = minray.put("still here")
minray.get(borrower.keep.remote([reference]))
del reference
print(minray.get(borrower.read.remote()))
minray.get(borrower.drop.remote())
