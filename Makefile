# The commands of the repository. Each is a script that can be run by itself.

.PHONY: run test lint dist

# Installs what is missing, builds, runs the tour. More options: make run TOUR="--all --keep"
run:
	scripts/run.sh $(TOUR)

# Installs what the tests need and passes all of them.
test:
	scripts/test.sh

lint:
	scripts/lint.sh

# Release binary, static agent, checksums, in dist/.
dist:
	cargo xtask dist
