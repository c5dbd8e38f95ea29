"""The tables of other libraries, with the rows that they leave out: Local, and FedAvg whose clients finetune."""
