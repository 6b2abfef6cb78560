SOAK ?= 30m

.PHONY: soak
soak: ## all protocols at once for SOAK=30m with reloads and failing backends: stays stack-proxy small? needs root
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/stack-proxy ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/soak ./cmd/soak
	@nice $(BIN)/soak -proxy $(BIN)/stack-proxy -duration $(SOAK) -dir $(BUILD)/soak

.PHONY: soak-boot
soak-boot: ## storms of 50 machines one after another for SOAK=30m: do stack-proxy and dhcp-relay stay small? needs root
	@cd test/e2e && go build -o $(BIN)/soak-boot ./cmd/soak-boot
	@$(BIN)/soak-boot -duration $(SOAK) -dir $(BUILD)/soak-boot
