.PHONY: boots
boots: ## stage faults of a network boot, the 42 rows of the review among them, and ask the pod what is the matter, some 17 minutes (FAULTS=row8,row15); needs root
	@scripts/deps test
	@cd test/e2e && go build -o $(BIN)/boots ./cmd/boots
	@$(BIN)/boots -out $(BUILD)/boots $(if $(FAULTS),-faults '$(FAULTS)')
.PHONY: test-boots-memory
test-boots-memory: ## 10,000 machines boot and 20 people look, with 192 MiB for stack-boots: no kill, and the most that it took, two minutes; needs root
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./cmd/stack-proxy ./cmd/stack-boots
	@cd test/e2e && go build -o $(BIN)/ ./cmd/bench
	@$(BIN)/bench boots-looked -proxy $(BIN)/stack-proxy -boots $(BIN)/stack-boots -out $(ROWS)/boot.json
