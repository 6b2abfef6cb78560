.PHONY: bench-relay
bench-relay: ## dhcp-relay against ISC dhcrelay, dnsmasq and dhcp-helper, both families, some 11 minutes; needs root
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/dhcp-relay ./cmd/dhcp-relay
	@cd test/e2e && go build -o $(BIN)/bench-relay ./cmd/bench-relay
	@$(BIN)/bench-relay -relay $(BIN)/dhcp-relay -peers $(BUILD)/bench/peers -report $(BUILD)/bench/relay.json
