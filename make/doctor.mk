.PHONY: doctor
doctor: ## stage faults of network and servers and ask stack-doctor what is in the way, some 15 minutes; HEALTHY=100 runs without one first; needs root
	@scripts/deps test
	@cd test/e2e && go build -o $(BIN)/doctor ./cmd/doctor
	@$(BIN)/doctor -out $(BUILD)/doctor $(if $(FAULTS),-faults '$(FAULTS)') $(if $(HEALTHY),-healthy $(HEALTHY))
