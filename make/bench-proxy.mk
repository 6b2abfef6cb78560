.PHONY: bench-proxy
bench-proxy: ## stack-proxy's TCP and HTTP against nginx and HAProxy, some 15 minutes; needs root
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/stack-proxy ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/bench-proxy ./cmd/bench-proxy
	@$(BIN)/bench-proxy -proxy $(BIN)/stack-proxy -out $(BUILD)/bench/proxy.json
