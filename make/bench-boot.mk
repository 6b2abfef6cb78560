# How many machines boot at once, and how many of 100 packets are lost: a case for each.
STORM_MACHINES ?= 100,300,1000
STORM_LOSS     ?= 0,1
STORM_RUNS     ?= 5
# After which nothing more is begun, such as 3m; make bench-boot goes on where it was then. 0 is all in one go.
STORM_WITHIN   ?= 0

.PHONY: bench-boot
bench-boot: ## a rack that powers on, through our pod and the former chart's, some 90 minutes (STORM_MACHINES, STORM_LOSS, STORM_RUNS; STORM_WITHIN=3m: in parts); needs root
	@cd test/e2e && go build -o $(BIN)/ ./cmd/bench
	@$(BIN)/bench boot -machines '$(STORM_MACHINES)' -loss '$(STORM_LOSS)' -runs '$(STORM_RUNS)' \
		-within '$(STORM_WITHIN)' -samples $(BUILD)/bench/boot-storm.samples.json \
		-dir $(BUILD)/bench/storm -peers $(BUILD)/bench/peers -out $(BUILD)/bench/boot-storm.json
