"""Run the commands of the command line, and summarise samples."""
