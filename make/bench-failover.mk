.PHONY: bench-failover
REPEATS ?= 20
FAILOVER ?=
bench-failover: ## how long an address is away when its node goes: REPEATS=20 of each case, an hour; FAILOVER="-short -cases drain,killed" or "-steady 1h -nodes 2"; needs root and the binaries of e2e-kube
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/stack-lb ./cmd/stack-lb
	@cd test/e2e && go build -o $(BIN)/bench-failover ./cmd/bench-failover
	@$(BIN)/bench-failover -lb $(BIN)/stack-lb -repeats $(REPEATS) -out $(BUILD)/bench/failover.json $(FAILOVER)
