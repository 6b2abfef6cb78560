.PHONY: boots
boots: ## stage the faults of a network boot with real firmware and ask the pod what is the matter, some 6 minutes; needs root
	@scripts/deps test
	@cd test/e2e && go build -o $(BIN)/boots ./cmd/boots
	@$(BIN)/boots -out $(BUILD)/boots $(if $(FAULTS),-faults '$(FAULTS)')
