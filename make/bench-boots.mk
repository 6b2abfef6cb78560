.PHONY: bench-boots
bench-boots: ## dhcp-relay and stack-proxy with the view of boots and without, some 10 minutes; needs root
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./cmd/dhcp-relay ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/ ./cmd/bench-relay ./cmd/bench-proxy
	@$(BIN)/bench-relay -boots -relay $(BIN)/dhcp-relay -runs 9 -report $(BUILD)/bench/boot.json
	@$(BIN)/bench-proxy -boots -proxy $(BIN)/stack-proxy -runs 9 -out $(BUILD)/bench/boot.json
