"""Tasks that hurt their process, beside innocent ones: each pill ends as the contract says, nobody else is harmed."""
