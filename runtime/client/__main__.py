from runtime.client.main import main

main()
