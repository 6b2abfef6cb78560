# How many machines boot at once, and how many of 100 packets are lost: a case for each.
STORM_MACHINES ?= 100,300,1000
STORM_LOSS     ?= 0,1
STORM_RUNS     ?= 5

.PHONY: bench-boot
bench-boot: ## a rack that powers on, through our pod and the incumbent's, some 90 minutes (STORM_MACHINES, STORM_LOSS, STORM_RUNS); needs root
	@cd test/e2e && go build -o $(BIN)/bench-boot ./cmd/bench-boot
	@$(BIN)/bench-boot -machines '$(STORM_MACHINES)' -loss '$(STORM_LOSS)' -runs '$(STORM_RUNS)' \
		-dir $(BUILD)/bench/storm -peers $(BUILD)/bench/peers -out $(BUILD)/bench/boot-storm.json
