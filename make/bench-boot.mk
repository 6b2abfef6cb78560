.PHONY: bench-boot
bench-boot: ## how fast the boots page shows machines while 2,000 boot, a minute
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/stack-proxy ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/bench-boot ./cmd/bench-boot
	@chrt --rr 10 $(BIN)/bench-boot -proxy $(BIN)/stack-proxy -out $(BUILD)/bench/boot.json
