# Two commands do everything from nothing: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := io,ray,onnx,demo,plot,prove,dev

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-models test-gpu check layers replay format bench clean docs

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | sort

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

demo: .venv/ready          ## train on real digits, show the plan, write the logits
	$(BIN)/tileweave run examples/digits.py

test: .venv/ready          ## the tests
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not slow"

test-slow: .venv/ready     ## the long random suites
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m slow

.venv/models: .venv/ready
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[models]'
	$(BIN)/python -m pip install --quiet --no-deps nvidia-cutlass==4.2.0.0
	@touch $@

test-models: .venv/models  ## real models and PyTorch's answers: installs torch, onnxruntime, transformers and models
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not slow" tests/models tests/graph/test_torch.py tests/layout/test_facts_cute.py

.venv/gpu: .venv/ready
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[gpu]'
	@touch $@

test-gpu: .venv/gpu        ## Triton's interpreter and compilers, the CUDA text again: installs triton, torch, NVRTC
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not slow" tests/backends/test_triton_kernels.py tests/backends/test_triton_printer.py tests/backends/test_gluon_printer.py tests/backends/cuda/test_cuda_templates.py tests/kernel

check: .venv/ready         ## format, lint, types, layers, size census, then the tests (which run the docs)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/structure.py census
	$(MAKE) --no-print-directory test

docs: .venv/ready          ## write docs/reference from the docstrings
	$(BIN)/python tools/reference.py write

layers: .venv/ready        ## draw packages and sub-packages from their imports, for docs/architecture.md
	$(BIN)/python tools/structure.py layers docs/images/layers.svg

replay: .venv/ready        ## layout results, programs, LLVM text and plans of a fixed corpus, compared with the golden digests
	$(BIN)/python tests/replay.py

format: .venv/ready        ## format and sort
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready         ## ratios against peers, as JSON lines
	for file in bench/*.py; do $(BIN)/python $$file || exit 1; done

clean:           ## remove what was built
	rm -rf .venv build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
